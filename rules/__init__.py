"""The tables: which slow pattern becomes what, one file per rule."""
