"""Measures how right predictions are, and checks whether answers stay what they were.

`python -m experiments.accuracy.peak_error` compares simulated peaks with those of TorchInductor's planner and of steps
that run; `traffic_error` compares predicted kernels with those that Inductor schedules (`kernel_truth` asks it);
`fusion_meanings` counts how often the meanings of "fusible" disagree. They write to `experiments/results`.
`python -m experiments.accuracy.fingerprint` is the check to run around a rebuild: it lists every plan, prediction and
printed answer that has changed. Begin reading in `peak_error`.
"""
