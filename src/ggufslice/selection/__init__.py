"""Which experts to keep, and why: `ExpertPlan`."""

from __future__ import annotations

from ggufslice.selection._plan import ExpertPlan, is_plan
from ggufslice.selection._rules import Rule, positive, whole

__all__ = ["ExpertPlan", "Rule", "is_plan", "positive", "whole"]
