"""A fit to rows on disk, ten times the memory that it may use, beside the same fit with the rows in memory.

    python benchmarks/streaming.py [--rows 1000000] [--columns 20] [--ways memory stream ...] [--out FILE]

Logistic regression. Every line is a process of its own; the file is written before, so that the page cache holds it.
`memory` is `relbo.from_log_density` with the rows as arrays, `stream` is `relbo.from_rows` with memory maps and
`max_memory` a tenth of the data, `parquet` and `zarr` the same from such files, `batches` with minibatches of 4,096.
Resident sets are the peak of the whole process (VmHWM), Python, JAX and its compiler included; `before` is what the
process had when the target was made. Seconds of wall clock and CPU are those of `relbo.fit`, `compile` those of the
compiler among the former.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

_WAYS = ("memory", "stream", "parquet", "zarr", "batches")
_GROUP = 4096


def log_prior(beta):
    return -(beta**2).sum() / 2


def log_likelihood(beta, rows):
    import jax

    logits = rows["x"] @ beta
    return rows["y"] * logits - jax.nn.softplus(logits)


def log_density(beta, x, y):
    return log_prior(beta) + log_likelihood(beta, {"x": x, "y": y}).sum()


def write(folder: pathlib.Path, num_rows: int, num_columns: int, ways: list[str]) -> None:
    """Block by block: this process stays small, too."""
    rng = np.random.default_rng(0)
    beta = 0.3 * rng.normal(size=num_columns)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (num_rows, num_columns))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (num_rows,))
    for start in range(0, num_rows, 2**16):
        stop = min(start + 2**16, num_rows)
        block = rng.normal(size=(stop - start, num_columns)).astype(np.float32)
        x[start:stop], y[start:stop] = block, rng.random(stop - start) < 1 / (1 + np.exp(-block @ beta))
    if "parquet" in ways:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.schema([("x", pa.list_(pa.float32(), num_columns)), ("y", pa.float32())])
        with pq.ParquetWriter(folder / "rows.parquet", kind, compression="NONE", use_dictionary=False) as file:
            for start in range(0, num_rows, _GROUP):
                part = x[start : start + _GROUP]
                lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), num_columns)
                file.write_table(pa.table({"x": lists, "y": pa.array(y[start : start + _GROUP])}, schema=kind))
    if "zarr" in ways:
        import zarr

        for name, array in (("x", x), ("y", y)):
            chunks = (_GROUP, *array.shape[1:])
            stored = zarr.create_array(folder / f"{name}.zarr", shape=array.shape, chunks=chunks, dtype="float32")
            for start in range(0, num_rows, 16 * _GROUP):
                stored[start : start + 16 * _GROUP] = array[start : start + 16 * _GROUP]


def make_target(way: str, folder: pathlib.Path):
    import jax.numpy as jnp

    import relbo

    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}
    start = jnp.zeros(arrays["x"].shape[1])
    if way == "memory":
        return relbo.from_log_density(log_density, start, args=(np.array(arrays["x"]), np.array(arrays["y"])))
    rows = arrays
    if way == "parquet":
        rows = folder / "rows.parquet"
    elif way == "zarr":
        import zarr

        rows = {name: zarr.open_array(folder / f"{name}.zarr", mode="r") for name in arrays}
    return relbo.from_rows(log_prior, log_likelihood, start, rows, batch_size=4096 if way == "batches" else None)


def peak() -> int:
    """The largest resident set of this process so far, in bytes; of its predecessor's, before exec, nothing."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure(way: str, folder: pathlib.Path, max_memory: int) -> dict:
    import relbo

    target, before = make_target(way, folder), peak()
    settings = {} if way == "memory" else {"max_memory": max_memory}
    wall, cpu = time.perf_counter(), time.process_time()
    posterior = relbo.fit(target, progress_bar=False, **settings)
    return {
        "way": way,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "compile": posterior.compile_seconds,
        "before_mb": before / 1e6,
        "peak_mb": peak() / 1e6,
        "evaluations": posterior.num_evaluations,
        "components": posterior.num_components,
        "elbo": posterior.elbo.value,
        "elbo_std_err": posterior.elbo.std_err,
        "first_location": posterior.locations[0][:3].tolist(),
    }


def line(seen: dict) -> str:
    return (
        f"{seen['way']:>8}  {seen['wall']:7.1f}  {seen['cpu']:7.1f}  {seen['compile']:7.1f}  {seen['before_mb']:6.0f}  "
        f"{seen['peak_mb']:6.0f}  {seen['evaluations']:11,}  {seen['elbo']:.4f} +- {seen['elbo_std_err']:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--ways", nargs="*", default=list(_WAYS), choices=_WAYS)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        way, folder, memory = options.only
        print(json.dumps(measure(way, pathlib.Path(folder), int(memory))))
        return
    size = 4 * options.rows * (options.columns + 1)
    print(f"{options.rows:,} x {options.columns} rows, {size / 1e6:.0f} MB, max_memory {size / 1e7:.1f} MB")
    print(f"{'':>8}  {'wall s':>7}  {'CPU s':>7}  {'compile':>7}  {'before':>6}  {'peak MB':>6}  evaluations  ELBO")
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder, options.rows, options.columns, options.ways)
        for way in options.ways:
            command = [sys.executable, __file__, "--only", way, name, str(size // 10)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
            print(line(results[-1]), flush=True)
    if options.out is not None:
        about = {"rows": options.rows, "columns": options.columns, "bytes": size, "max_memory": size // 10}
        options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
