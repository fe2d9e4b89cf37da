"""Request flow, on the event loop; kernels and large copies run on the kernel thread."""
