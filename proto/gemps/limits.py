"""Size limits of the contract, for both ends; docs/protocol.md lists them. Bytes, and 1 MiB is 2**20."""

MESSAGE_BYTES = (2 << 20) + (64 << 10)
# All fields of a message except its chunk's data.
FIELDS_BYTES = 8192
# JoinRequest.recipe: 256 groups with 16 settings each, and a group for each of 65,536 tensors, fit.
RECIPE_BYTES = 512 << 10
# More of an Initialize: the adapter.
ADAPTER_BYTES = 32 << 10
# Parsing 2 MiB of empty fields would take seconds.
FIELDS = 1000
# Larger payloads wait for `proceed` (commit.proto).
WHOLE_PAYLOAD_BYTES = 64 << 10
# A commit's first message: its header, and a whole payload.
FIRST_MESSAGE_BYTES = WHOLE_PAYLOAD_BYTES + (16 << 10)
HELLO_BYTES = 4096
# The lane's END: a serialised google.rpc.Status.
END_BYTES = 8192
SESSION_ID_BYTES = 16
# Of a commit, and of a worker's epoch (steps); sums over a run fit 64 bits.
SAMPLES = 1 << 32
# worker_name, host_id, agent, device, reason.
TEXT_BYTES = 256
SHARED_MEMORY_REQUEST_BYTES = 256
SHARED_MEMORY_ANSWER_BYTES = 8192
