"""Catalogue of faults: the smallest real way to cause each trouble, through the model, the data or the system."""
