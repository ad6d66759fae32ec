"""What every call makes anew though it is the same: kept where the module is made."""
