"""Datasets: one file each, from raw files to a Population."""
