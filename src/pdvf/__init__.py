import sys

__version__ = "0.1.0"

if "gymnasium" in sys.modules:  # else its plugin does it when it is imported; `import pdvf` stays light
    from pdvf.ids import register

    register()
