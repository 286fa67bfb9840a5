"""Studies what training steps move between memory and kernels under different choices of what is saved.

`python -m experiments.traffic_study.compare_strategies` counts it with TorchInductor's scheduler for every strategy,
the refined plans included; `traffic_report` makes its page and `traffic_picture` its picture. `duplicate_table` counts
what computing values again within a pass saves, and `traffic_floor` prints a bound that no plan can beat.
`shared_write` is a strategy: the linear program in which all readers share one write. Begin in `compare_strategies`.
"""
