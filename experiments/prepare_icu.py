"""The two sets of intensive care from PhysioNet's originals: features of a stay, imputed, clipped, standardised.

Written from the notes on the files that we read, after the fact: the split of icu_mortality is reproduced exactly,
but the originals were not at hand to compare the features. The digest that `experiments.prepare` prints says whether
they agree.
"""

import csv
import gzip
import pathlib
from collections.abc import Iterable

import numpy as np

SIGNALS = (
    "HR", "Temp", "GCS", "SysABP", "DiasABP", "MAP", "NISysABP", "NIDiasABP", "RespRate", "pH", "PaCO2", "PaO2", "SaO2",
    "FiO2", "Lactate", "Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Creatinine", "Glucose", "HCO3", "HCT", "K",
    "Mg", "Na", "Platelets", "WBC",
)  # fmt: skip
LOGGED = {
    "ALP", "ALT", "AST", "Bilirubin", "BUN", "Creatinine", "Glucose", "Lactate", "Platelets", "WBC", "PaO2",
}  # fmt: skip
RANGES = {"Temp": (25, 45), "pH": (6.5, 8), "Height": (100, 230)}
"""Plausible values, both ends included; of all others, those of at least zero (of what is logged, above zero)."""
UNITS = {1: "ICUType_CCU", 2: "ICUType_CSRU", 3: "ICUType_MICU", 4: "ICUType_SICU"}


def icu_mortality(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """PhysioNet/CinC Challenge 2012, sets a, b and c: 12,000 stays, death in hospital, features of the first "
    "48 hours."""
    labels = dict(row for name in "abc" for row in _outcomes(folder / f"Outcomes-{name}.txt"))
    records = {int(path.stem): path for name in "abc" for path in (folder / f"set-{name}").glob("*.txt")}
    ids = np.array(sorted(set(records) & set(labels)), np.int32)
    rows = [stay_features(_measurements(records[number])) for number in ids.tolist()]
    names = list(rows[0])
    x = np.array([[row[name] for name in names] for row in rows])
    y = np.array([labels[number] for number in ids.tolist()], np.uint8)
    order = np.random.default_rng(0).permutation(len(ids))
    train, test = order[: int(0.7 * len(ids))], order[int(0.7 * len(ids)) :]
    found = standardized(x, y, train, test, binary=np.zeros(len(names), bool))
    return found | {
        "feature_names": np.array(names),
        "record_id_train": ids[train],
        "record_id_test": ids[test],
    }


def stay_features(measured: list[tuple[str, float]]) -> dict[str, float]:
    """Of one stay, from parameter and value in order of time; NaN is missing."""
    values: dict[str, list[float]] = {}
    for name, value in measured:
        low, high = RANGES.get(name, (0.0, np.inf))
        if low <= value <= high and not (name in LOGGED and value <= 0):
            values.setdefault(name, []).append(np.log(value) if name in LOGGED else value)

    def mean(name: str) -> float:
        return float(np.mean(values[name])) if name in values else np.nan

    found = {"Age": mean("Age"), "Gender": mean("Gender"), "Height": mean("Height"), "Weight": mean("Weight")}
    kind = values.get("ICUType", [0])[0]
    found |= {name: float(kind == number) for number, name in UNITS.items()}
    found["MechVent_any"] = float(any(values.get("MechVent", [])))
    found["Urine_total_log1p"] = float(np.log1p(sum(values["Urine"]))) if "Urine" in values else np.nan
    for name in SIGNALS:
        found |= {f"{name}_mean": mean(name), f"{name}_last": values[name][-1] if name in values else np.nan}
    return found


def _measurements(path: pathlib.Path) -> list[tuple[str, float]]:
    with path.open() as file:
        return [(row["Parameter"], float(row["Value"])) for row in csv.DictReader(file) if row["Parameter"]]


def _outcomes(path: pathlib.Path) -> Iterable[tuple[int, int]]:
    with path.open() as file:
        for row in csv.DictReader(file):
            yield int(row["RecordID"]), int(row["In-hospital_death"])


def standardized(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, binary: np.ndarray
) -> dict[str, np.ndarray]:
    """Median imputation, clipping to the 0.5 % and 99.5 % quantiles (not of what is binary), mean 0 and deviation 1.

    All of it from the train part.
    """
    x = np.where(np.isnan(x), np.nanmedian(x[train], axis=0), x)
    low, high = np.quantile(x[train], [0.005, 0.995], axis=0)
    x = np.where(binary, x, np.clip(x, low, high))
    deviation = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return {
        "X_train": x[train].astype(np.float32),
        "y_train": y[train],
        "X_test": x[test].astype(np.float32),
        "y_test": y[test],
    }


APACHE_LOGGED = ("urine", "wbc", "creatinine", "pao2", "bun", "glucose", "bilirubin")
APACHE = (
    "intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
    "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2", "pco2",
    "bun", "glucose", "bilirubin", "fio2",
)  # fmt: skip
PREDICTORS = (
    "hepaticfailure", "lymphoma", "metastaticcancer", "leukemia", "immunosuppression", "cirrhosis", "electivesurgery",
    "activetx", "readmit", "ima", "midur", "ventday1", "oobventday1", "oobintubday1", "diabetes", "thrombolytics",
)  # fmt: skip
UNIT_TYPES = (
    "Med-Surg ICU", "MICU", "Cardiac ICU", "SICU", "CCU-CTICU", "Neuro ICU", "CSICU", "CTICU",
)  # fmt: skip
SOURCES_OF = {
    "from_emergency": ("Emergency Department",),
    "from_floor": ("Floor",),
    "from_operating_room": ("Operating Room", "Recovery Room", "PACU"),
    "from_direct": ("Direct Admit",),
    "from_other_hospital": ("Other Hospital",),
    "from_other_icu_or_sdu": ("Other ICU", "ICU", "ICU to SDU", "Step-Down Unit (SDU)", "Acute Care/Floor"),
}
DIAGNOSES = {
    "dx_sepsis": ("sepsis",),
    "dx_cardiac_arrest": ("cardiac arrest",),
    "dx_stroke": ("cva", "stroke"),
    "dx_acs_or_mi": ("infarction", "mi ", "angina", "acs"),
    "dx_heart_failure": ("chf", "heart failure"),
    "dx_respiratory": ("pneumonia", "respiratory", "copd", "emphysema", "asthma"),
    "dx_metabolic_or_overdose": ("diabetic", "metabolic", "overdose"),
}


def eicu_demo_mortality(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """eICU demo v2.0: stays with APACHE variables and a known status at hospital discharge; split by patient."""
    physiology = {row["patientunitstayid"]: row for row in _table(folder, "apacheApsVar")}
    predictors = {row["patientunitstayid"]: row for row in _table(folder, "apachePredVar")}
    stays = [
        row
        for row in sorted(_table(folder, "patient"), key=lambda row: int(row["patientunitstayid"]))
        if row["patientunitstayid"] in physiology
        and row["patientunitstayid"] in predictors
        and row["hospitaldischargestatus"] in ("Alive", "Expired")
    ]
    rows = [
        demo_features(row, physiology[row["patientunitstayid"]], predictors[row["patientunitstayid"]]) for row in stays
    ]
    names = list(rows[0])
    x = np.array([[row[name] for name in names] for row in rows])
    y = np.array([row["hospitaldischargestatus"] == "Expired" for row in stays], np.uint8)
    ids = np.array([int(row["patientunitstayid"]) for row in stays], np.int64)
    patients = np.array([row["uniquepid"] for row in stays])
    everyone = np.unique(patients)
    chosen = np.random.default_rng(0).permutation(everyone)[: int(0.7 * len(everyone))]
    in_train = np.isin(patients, chosen)
    train, test = np.flatnonzero(in_train), np.flatnonzero(~in_train)
    binary = np.array([set(np.unique(column[~np.isnan(column)])) <= {0.0, 1.0} for column in x.T])
    found = standardized(x, y, train, test, binary)
    return found | {"feature_names": np.array(names), "stay_id_train": ids[train], "stay_id_test": ids[test]}


def demo_features(stay: dict[str, str], physiology: dict[str, str], predictors: dict[str, str]) -> dict[str, float]:
    """Of one stay; -1 is missing in the APACHE tables."""
    hours = -_number(stay["hospitaladmitoffset"]) / 60
    found = {
        "age": 90.0 if ">" in stay["age"] else _number(stay["age"]),
        "male": float(stay["gender"] == "Male"),
        "height_cm": _number(stay["admissionheight"]),
        "weight_kg": _number(stay["admissionweight"]),
        "log_hours_in_hospital_before_icu": float(np.log1p(max(hours, 0.0))),
    }
    found |= {f"unit_{name}": float(stay["unittype"] == name) for name in UNIT_TYPES}
    found |= {name: float(stay["unitadmitsource"] in places) for name, places in SOURCES_OF.items()}
    measured = {name: _number(physiology[name]) for name in APACHE}
    measured = {name: np.nan if value == -1 else value for name, value in measured.items()}
    for name, value in measured.items():
        logged = name in APACHE_LOGGED
        found[f"log_{name}" if logged else name] = float(np.log(max(value, 1e-2))) if logged else value
    asked = {"abg": "ph", "albumin": "albumin", "bilirubin": "bilirubin", "urine": "urine"}
    found |= {f"measured_{name}": float(not np.isnan(measured[of])) for name, of in asked.items()}
    found |= {name: max(_number(predictors[name]), 0.0) for name in PREDICTORS}
    diagnosis = stay["apacheadmissiondx"].lower()
    return found | {name: float(any(word in diagnosis for word in words)) for name, words in DIAGNOSES.items()}


def _number(text: str) -> float:
    return float(text) if text else np.nan


def _table(folder: pathlib.Path, name: str) -> list[dict[str, str]]:
    """A table as PhysioNet has it: csv, or csv.gz."""
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.gz"
    if not plain.exists() and not packed.exists():
        raise ValueError(f"{folder} holds neither {plain.name} nor {packed.name}.")
    with plain.open() if plain.exists() else gzip.open(packed, "rt") as file:
        return list(csv.DictReader(file))
