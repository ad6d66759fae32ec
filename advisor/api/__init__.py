"""What a program or a notebook calls as ``npufix.load``, ``npufix.scan`` and ``npufix.verify``.

In: a dump, a source, two functions. Out: objects with tables of pandas that a notebook shows. Read
``showing``, what all of them share, then ``recording``, ``searching``, ``standing_alone`` (a
function as a module of its own), ``verifying``, ``pytest_plugin``.
"""
