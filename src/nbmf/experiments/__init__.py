"""The paper's §5 on any counts: a grid of runs → rows on disk → claims and pictures → a report."""
