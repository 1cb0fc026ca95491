"""The dashboard: a live page about the runs below a folder, from what they write."""
