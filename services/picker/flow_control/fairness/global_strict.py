"""`global-strict-fairness-policy`: flows don't matter; the band is one queue, in the order of its ordering policy."""

from services.picker.flow_control.interfaces import FairnessPolicy


class GlobalStrictFairnessPolicy(FairnessPolicy):
    """The first of all requests of the band."""

    TYPE = "global-strict-fairness-policy"
    BY_FLOW = False
