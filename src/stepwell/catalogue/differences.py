"""Where the default of a method is not what its paper says: for `stepwell ls -p` and the method's page.

Planted problem: the share of draws where there is something to learn, with this one rule as in the paper;
uniform draws give 0.20. Five seeds (benchmarks/policy_rules.py).
"""

from __future__ import annotations

from stepwell.catalogue.entry import Difference

BETA_POLICY = (
    Difference(
        "order of Algorithm 2",
        "push the row, choose S, pay on the new S",
        "pay on the S of the last policy update, then choose",
        "what is measured before an update must be known before it; the paper's order needs a second copy of "
        "the weights during the update",
        "planted problem: 0.144 instead of 0.172, no more than seeds differ",
    ),
    Difference(
        "x0 of the row",
        "a random image of the data",
        "a random image of the batch that was trained on",
        "a loop shows its batches only; `paper` takes an image of the batch of the last policy update",
        "planted problem: 0.172, as by default",
    ),
    Difference(
        "timesteps of the row",
        "all T",
        "50, evenly spaced",
        "neighbours are alike, and a row costs a twentieth",
        "planted problem: 0.180 instead of 0.172, no more than seeds differ",
    ),
    Difference(
        "input of the policy",
        "the image, 32 pixels a side",
        "averaged to 8 pixels a side",
        "a sixteenth of the pixels, in every step",
        "not on the planted problem, whose examples are vectors",
    ),
    Difference(
        "a and b",
        "any positive numbers",
        "between 0.5 and 32, with a penalty beyond",
        "no timestep gets more than a fifth of the draws, and a policy at one end comes back",
        "planted problem: 0.150 instead of 0.172, the policy's entropy -0.725 instead of -0.428",
    ),
    Difference(
        "advantage",
        "the reward itself, without a baseline",
        "(reward - mean) / deviation over the batch",
        "all examples share most of their reward, which hides what differs between their timesteps",
        "planted problem: 0.201, the policy stays uniform, since the entropy outweighs raw rewards",
    ),
    Difference(
        "entropy",
        "1e-2, beside raw rewards",
        "1e-2, beside rewards of deviation 1",
        "it only has to keep the policy from collapsing",
        "planted problem: raw rewards have a deviation of 5.8e-06, so 1e-2 weighs 1.7e5 times as much",
    ),
    Difference(
        "loss of the reward",
        "c_t times the squared norm of the error, a sum over dimensions",
        "a mean over dimensions",
        "the scale does not depend on the size of the images",
        "nothing beside standardised rewards; beside raw ones, planted problem: 0.201 either way",
    ),
    Difference(
        "weights of the bound",
        "every c_t",
        "capped at 1",
        "on cosine c_999 is 499.5",
        "without it one timestep is 97 % of the sum over t on cosine; linear and quadratic stay below 1",
    ),
    Difference(
        "uniform draws",
        "none",
        "a tenth, which the policy is credited for",
        "a noisy reward could starve a timestep for good",
        "planted problem: 0.161 instead of 0.172, no more than seeds differ",
    ),
)
