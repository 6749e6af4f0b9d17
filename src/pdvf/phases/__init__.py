"""The phases of PD-VF, one file each; `pdvf.pipeline` puts them together."""
