"""Placers of the literature: Placeto, the RNN-based placer and HDP.

Each makes one choice after another and is trained by REINFORCE.
"""

from tfplace.learned import Method
from tfplace.learned.sequence import features, placeto_features

METHODS = {
  name: Method(
    placer=f"tfplace.learned.sequence.placers:{title}Placer",
    version=version,
  )
  for name, title, version in (
    ("placeto", "Placeto", placeto_features.VERSION),
    ("hierarchical", "Hierarchical", features.VERSION),
    ("rnn", "Rnn", features.VERSION),
  )
}
