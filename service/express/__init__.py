"""Small scoring requests straight from the socket: what the framework, the server and a task of their own would cost
them is more than they cost themselves.

Nothing is answered here that would be answered otherwise: a request is taken only if its head is, byte for byte, one
that has been read before, its body has come, and nothing about it is new but its numbers. Those of one turn of the
event loop that differ in nothing else share a run, its bookkeeping and most of their answers. All others, and those in
which anything is wrong, go the long way.
"""
