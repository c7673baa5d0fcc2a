"""The formats that a diagnosis reads, one file each; adding the file adds the format."""
