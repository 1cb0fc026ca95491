"""Datasets: raw files, prepared stores, synthetic images, partitions and preprocessing."""
