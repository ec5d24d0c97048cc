"""Simulation-based calibration of the whole fit."""

from relbo.calibration.ranks import RankTest
from relbo.calibration.result import Calibration
from relbo.calibration.sbc import calibrate
from relbo.calibration.trial import Failure

__all__ = ["Calibration", "Failure", "RankTest", "calibrate"]
