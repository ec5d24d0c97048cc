"""Simulation-based calibration of the whole fit."""

from relbo.calibration.calibrate import calibrate
from relbo.calibration.ranks import RankTest
from relbo.calibration.result import Calibration
from relbo.calibration.trial import Failure

__all__ = ["Calibration", "Failure", "RankTest", "calibrate"]
