"""Catalogue of detectors: one file each, found by discovery."""
