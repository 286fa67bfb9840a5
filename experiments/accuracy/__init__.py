"""Measures how right predictions are, and checks whether answers stay what they were.

`compiled_peaks`, `foreign_peaks` and `forecast_error` compare predicted memory with what compiled steps hold;
`traffic_error` and `traffic_error_triton` predicted kernels with those that Inductor schedules; `gpu_compared` and
`gpu_training` ask a GPU. `live_kernels` and `skipped_kernels` change what a compilation does with its kernels.
`python -m experiments.accuracy.fingerprint` is the check to run around a rebuild: it lists every plan, prediction and
printed answer that has changed. Begin reading in `compiled_peaks`.
"""
