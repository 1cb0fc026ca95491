"""The board: a page that follows runs while they go, over what they write into their folders."""
