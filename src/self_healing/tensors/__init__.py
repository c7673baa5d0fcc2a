"""Everything that computes with torch tensors: the one room that may import torch at the top of a module."""
