from pdvf.ids import register

__version__ = "0.1.0"

register()
