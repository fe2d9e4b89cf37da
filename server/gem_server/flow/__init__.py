"""How requests flow: calls, the staging pool and its waiting room, the queue, the one applying task. No gRPC.

Everything here runs on the event loop; kernels and large copies run on the kernel thread while the applying task waits.
"""
