"""The gemps server: one gRPC service that holds a model's parameters and applies workers' deltas to them.

settings.py     what it can be told
state/          what it knows: central variable, sessions, workers, ledger, run
flow/           how requests flow: staging pool, queue, the one applying task
durability/     what survives it: checkpoints, and a log; persistence.py puts these together
security/       who may come in: certificates, tokens
service/        gRPC, and nothing else
server.py       puts the parts together; process.py runs it as a process. course.py, ending.py, desertion.py and
                breakdown.py are what it decides by: moments, when to end, what to say, what has failed
"""

__version__ = "0.1.0"
