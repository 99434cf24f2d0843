"""What worker processes start with: the server that they are forked from imports this once."""

from twin.engine.compiled import warm_up

warm_up()
