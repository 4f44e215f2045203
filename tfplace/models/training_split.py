"""The training split of the models: what a policy may be pre-trained on.

Models of the published tables in other sizes than any row has: other numbers
of layers, and shorter unrolls, so that one graph has some thousands of ops.
WaveNet, AmoebaNet and NASNet are not among them: they, and the family
`cifar10` if it is left out too, are what a pre-trained policy never saw.
"""

from collections.abc import Mapping

# (Name in the zoo, sizes that differ from its defaults.)
TRAINING_SPLIT: tuple[tuple[str, Mapping[str, int]], ...] = (
  ("rnnlm", {"layers": 1, "length": 30}),
  ("rnnlm", {"layers": 3, "length": 20}),
  ("rnnlm", {"layers": 3, "length": 32}),
  ("rnnlm", {"layers": 5, "length": 16}),
  ("rnnlm", {"layers": 6, "length": 14}),
  ("gnmt", {"layers": 3, "length": 12}),
  ("gnmt", {"layers": 3, "length": 18}),
  ("gnmt", {"layers": 5, "length": 10}),
  ("gnmt", {"layers": 6, "length": 8}),
  ("transformer_xl", {"layers": 3, "segments": 4}),
  ("transformer_xl", {"layers": 5, "segments": 3}),
  ("transformer_xl", {"layers": 6, "segments": 2}),
  ("inception_v3", {"image_size": 139}),
)
