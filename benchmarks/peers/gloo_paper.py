"""The paper's exchange (Hermans and Louppe 2018, algorithm 1), on torch.distributed with gloo, as its authors ran it.

A worker that has a delta queues up with a UDP datagram (`recv` from any rank would favour low ranks). The server serves
one worker at a time, in the order of the datagrams: it sends theta, waits while the worker rescales with PyTorch,
receives the update, adds it. The worker's parameters are then theta plus its own update.
"""

import socket

from benchmarks.peers.interface import SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk

MOMENTUM = 0.9
KAPPA = 1.0
PI_MAX = 5.0
EPSILON = 1e-12
LEAVE = 1 << 30  # added to a rank


class GlooPaper(Contender):
    """Pull, rescale on the worker, commit."""

    name = "torch-gloo-paper"
    title = "the paper's exchange (gloo)"
    does = "one worker at a time pulls, rescales with PyTorch and commits; the server adds"

    def server_memory(self, case: Case) -> int:
        """Theta, and what arrives."""
        return SERVER_PROCESS + 2 * case.vector

    def worker_memory(self, case: Case) -> int:
        """The model, delta, moment, pulled theta, update, and PyTorch's temporaries."""
        return WORKER_PROCESS + 9 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """Serve until everybody has left."""
        import torch
        import torch.distributed as dist

        theta = torch.zeros(case.parameters)
        update = torch.zeros(case.parameters)
        store = dist.TCPStore("127.0.0.1", 0, case.workers + 1, is_master=True, wait_for_workers=False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as queue:
            queue.bind(("127.0.0.1", 0))
            desk.ready(f"127.0.0.1:{store.port}:{queue.getsockname()[1]}")
            dist.init_process_group("gloo", store=store, rank=0, world_size=case.workers + 1)
            live = case.workers
            while live:
                rank = int.from_bytes(queue.recv(8), "little")
                if rank >= LEAVE:
                    live -= 1
                    continue
                dist.send(theta, rank)
                dist.recv(update, rank)
                theta.add_(update)
        desk.wait_for_end()
        dist.destroy_process_group()

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """The worker of algorithm 1, with what its implementation added: pi in [0, 5], epsilon 1e-12."""
        import torch
        import torch.distributed as dist

        from benchmarks.peers.model import Model

        host, store_port, queue_port = address.split(":")
        store = dist.TCPStore(host, int(store_port), case.workers + 1, is_master=False)
        me = rank + 1
        dist.init_process_group("gloo", store=store, rank=me, world_size=case.workers + 1)
        model = Model(case.parameters, rank)
        delta = torch.zeros(case.parameters)
        moment = torch.zeros(case.parameters)
        theta = torch.zeros(case.parameters)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as queue:
            queue.connect((host, int(queue_port)))

            def step() -> None:
                model.scale_into(delta)
                moment.mul_(MOMENTUM).add_(delta)
                queue.send(me.to_bytes(8, "little"))
                dist.recv(theta, 0)
                drift = (theta - model.parameters).abs_()
                pi = moment.abs().mul_(KAPPA).sub_(drift).div_(delta.abs().add_(EPSILON)).clamp_(0, PI_MAX)
                update = pi.mul_(delta)
                dist.send(update, 0)
                torch.add(theta, update, out=model.parameters)

            desk.pace(step)
            queue.send((LEAVE + me).to_bytes(8, "little"))
        dist.destroy_process_group()
