"""A learned method as a newcomer would add it: this folder, and one line.

Decisions go to the device on which they are fastest or slowest, whichever the
one weight of the policy says.
"""

from tfplace.learned import Method
from toy import placer

METHODS = {
  "toy": Method(
    placer="toy.placer:ToyPlacer",
    learner="toy.learner:ToyLearner",
    version=1,
    functions={"logits": placer.SIGNATURE},
  )
}
