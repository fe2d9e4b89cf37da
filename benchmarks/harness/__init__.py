"""The harness of `make bench`: what is measured, how processes are started and watched, and what is made of it.

It knows contenders only through `peers.interface`; nothing in it is about one of them.
"""
