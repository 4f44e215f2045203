"""Contents of small JSON files."""

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
GRAPH = {
  "format": "tfplace.graph.v1",
  "name": "tiny",
  "owner": {"kept": [1, 2]},
  "ops": [
    {
      "name": "a",
      "type": "MatMul",
      "time_us": {"GPU": 12.5, "CPU": 300},
      "output_bytes": [4096, 8],
      "persistent_bytes": 7,
      "temp_bytes": 3,
      "colocation": "x",
      "note": "kept",
    },
    {"name": "b", "type": "Relu", "time_us": {"CPU": 1}, "output_bytes": []},
  ],
  "edges": [
    {"src": "a", "output": 1, "dst": "b", "why": "kept"},
    {"src": "a", "output": -1, "dst": "b"},
  ],
}
CLUSTER = {
  "format": "tfplace.cluster.v1",
  "name": "pair",
  "devices": [
    {"name": GPU, "kind": "GPU", "memory_bytes": 100, "color": "red"},
    {"name": CPU, "kind": "CPU", "op_overhead_us": 2.5},
  ],
  "links": [
    {"src": GPU, "dst": CPU, "bandwidth_bytes_per_us": 10, "channel": "pcie"},
    {"src": CPU, "dst": GPU, "bandwidth_bytes_per_us": 10, "gap_us": 1},
  ],
}
