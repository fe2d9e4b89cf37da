"""What people and Prometheus look at by HTTP: to be looked at only, on ports of its own (--dashboard, --metrics)."""
