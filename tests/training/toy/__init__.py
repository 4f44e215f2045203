"""A learned method as a newcomer would add it: this folder, and one line.

Decisions go to the device on which they are fastest or slowest, whichever the
one weight of the policy says.
"""

from tfplace.learned import Method

METHODS = {
  "toy": Method(
    placer="tests.training.toy.placer:ToyPlacer",
    learner="tests.training.toy.learner:ToyLearner",
    version=1,
  )
}
