"""Cost models for `remat`: each turns a graph into a problem."""

from costmodels.byte_traffic import ByteTraffic

__all__ = ["ByteTraffic"]
