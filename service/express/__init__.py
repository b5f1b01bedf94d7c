"""Scoring requests straight from the socket: what the framework, the server and a task of their own would cost small
ones is more than they cost themselves, and large ones would be read in slices and copied from one to the next.

Nothing is answered here that would be answered otherwise: a request is taken only if its head is, byte for byte, one
that has been read before, its body has come, and nothing about it is new but its numbers. Small ones of one turn of the
event loop that differ in nothing else share a run, its bookkeeping and most of their answers; a large one waits for a
worker, if its answer is its numbers as they are. All others, and those in which anything is wrong, go the long way.
"""
