"""Large-neighborhood moves of a proposer inside the search, while they pay.

A proposer, such as a policy, changes many groups of a placement at once. Each
chain asks it about its best placement. While its proposals gain at least as
much per second as the moves of the chain, they get as many seconds as these;
otherwise a small share, to try whether they pay by now.
"""

import math
import time

import numpy as np

from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.guide import Guided, Proposer
from tfplace.placers.search.state import TINY_US, TimeOrder

# Share of a chain's time for proposals that gain less than the chain, and share
# of the time so far over which gains are remembered; not tuned.
_TRIAL_SHARE, _MEMORY = 0.05, 0.2


class Proposals:
  """Proposals for one chain, and what they gain per second.

  Args:
    groups: Groups of the problem that the proposer knows.
    order: Renumbering of the problem in the search.
    chain: Gets the moves that the proposer rates.
  """

  def __init__(
    self,
    proposer: Proposer,
    groups: GroupGraph,
    order: TimeOrder,
    rng: np.random.Generator,
    chain: Chain,
  ) -> None:
    self._proposer = proposer
    self._groups = groups
    self._order = order
    self._rng = rng
    self._guided = Guided(proposer, groups, order)
    chain.guide = self._guided.guide
    self._chain, self._proposed = _Gains(), _Gains()
    self._at = time.perf_counter()
    self._best_us = math.inf
    self._left_s = 0.0  # For proposals.
    self._number = 0

  def skip(self, chain: Chain) -> None:
    """Counts no gain of a chain that has taken over a placement."""
    self._at = time.perf_counter()
    self._best_us = min(self._best_us, chain.best_us)

  def after_sweep(self, chain: Chain) -> None:
    """Rates moves; proposals wait for the annealing."""
    self._guided.update(chain.devices)
    self.skip(chain)

  def after_chunk(self, chain: Chain) -> None:
    """Accounts for what the chain did since the last call; may propose."""
    self._guided.update(chain.devices)
    seconds = self._add(self._chain, chain)
    share = 1.0 if self._pays else _TRIAL_SHARE
    self._left_s = min(self._left_s, 0.0) + share * seconds
    while math.isfinite(chain.best_us) and self._left_s > 0.0:
      self._left_s -= self._propose(chain)

  @property
  def _pays(self) -> bool:
    rate = self._proposed.rate
    return rate > 0.0 and rate >= self._chain.rate

  def _propose(self, chain: Chain) -> float:
    """Makes one proposal; returns its seconds."""
    groups, order = self._groups, self._order
    base = groups.expand(order.leave(chain.best))
    devices = self._proposer.propose(base, self._number, self._rng)
    self._number += 1
    chain.jump(order.enter(groups.contract(devices)))
    return self._add(self._proposed, chain)

  def _add(self, gains: "_Gains", chain: Chain) -> float:
    """Adds the gain and the seconds since the last call; returns these."""
    gained = 0.0
    if chain.best_us < self._best_us < math.inf:
      least_us = chain.best_us + TINY_US
      gained = math.log((self._best_us + TINY_US) / least_us)
    now = time.perf_counter()
    seconds = now - self._at
    self.skip(chain)
    total = self._chain.total + self._proposed.total + seconds
    for each in (self._chain, self._proposed):
      each.forget(seconds, _MEMORY * total)
    gains.add(gained, seconds)
    return seconds


class _Gains:
  """Gains and seconds that fade.

  Attributes:
    total: All seconds.
  """

  def __init__(self) -> None:
    self.total = 0.0
    self._gain = self._seconds = 0.0

  @property
  def rate(self) -> float:
    """Recent gain per second."""
    return self._gain / self._seconds if self._seconds > 0.0 else 0.0

  def forget(self, seconds: float, memory: float) -> None:
    """Fades while seconds pass; `memory` is the time constant."""
    if memory > 0.0:
      fade = math.exp(-seconds / memory)
      self._gain *= fade
      self._seconds *= fade

  def add(self, gain: float, seconds: float) -> None:
    self.total += seconds
    self._gain += gain
    self._seconds += seconds
