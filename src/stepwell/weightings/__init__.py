"""What losses are multiplied by.

fixed: formulas of the SNR; flow: formulas of a flow's share of noise; uncertainty: 1 over the loss itself,
learned while the model trains.
"""

from __future__ import annotations

from stepwell.core.weighting import LearnedWeighting as LearnedWeighting
from stepwell.core.weighting import Weighting as Weighting
from stepwell.weightings.fixed import P2 as P2
from stepwell.weightings.fixed import Debiased as Debiased
from stepwell.weightings.fixed import Likelihood as Likelihood
from stepwell.weightings.fixed import MinSnr as MinSnr
from stepwell.weightings.fixed import SoftMinSnr as SoftMinSnr
from stepwell.weightings.fixed import Speed as Speed
from stepwell.weightings.fixed import Unweighted as Unweighted
from stepwell.weightings.fixed import Vlb as Vlb
