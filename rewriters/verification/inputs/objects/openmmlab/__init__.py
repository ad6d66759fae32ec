"""What code of OpenMMLab's packages calls and is given, where mmcv and mmengine are not installed.

``functions`` stands for what they compute, ``elements`` for the annotations and predictions of
images, which ``annotations`` makes for arguments that are some.
"""
