"""`manyeyes bench`: the same work on our engines and on others', each in a process of its own, in one table."""
