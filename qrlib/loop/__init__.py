"""The research loop: a candidate is judged and timed, and what became of it is kept.

ledger     the log: a line for each try and each decision
"""
