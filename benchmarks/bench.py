import argparse, json
from harness.run import Nurseries, run_once
from peers import CONTENDERS
from peers.interface import Case
p = argparse.ArgumentParser()
p.add_argument("--contenders", nargs="+"); p.add_argument("--parameters", type=int, nargs="+", default=[4194304]); p.add_argument("--workers", type=int, nargs="+", default=[4]); p.add_argument("--seconds", type=float, default=3); p.add_argument("--rounds", type=int, default=3)
a = p.parse_args()
n = Nurseries()
for P in a.parameters:
  for w in a.workers:
    for r in range(a.rounds):
      for c in a.contenders:
        if (why := CONTENDERS[c].unavailable()): print(c, why); continue
        x = run_once(CONTENDERS[c], Case(P, w), a.seconds, r, n)
        if x.error: print(c, "FAILED", x.error); continue
        s=sum(x.commits)
        print(f"{c:22} P={P} w={w} {s/x.seconds:8.1f}/s p50 {x.took[50]*1e3:.2f} p99 {x.took[99]*1e3:.2f} ms cpu/commit server {x.server_cpu/s*1e3:.2f} workers {x.workers_cpu/s*1e3:.2f} ms anon {x.server_anonymous/1e6:.0f} MB shm {x.server_shared/1e6:.0f}", flush=True)
n.close()
