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
