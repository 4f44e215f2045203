"""A py_test that runs pytest on the tests of its folder."""

def pytest_folder(name, deps, tensorflow = [], without = [], **kwargs):
    """The support library and the tests of one folder.

    Args:
      name: of the folder, and so of the test that needs no TensorFlow.
      deps: what its files import.
      tensorflow: files of tests that load TensorFlow. They are a test of their
        own, `<name>_tensorflow`, which `bazel test //...` leaves out. (Where
        all of them do, `tags = ["manual"]` leaves out the folder.)
      without: ends of the names of further cases that load TensorFlow, which
        are left out.
      **kwargs: further arguments of both tests.
    """
    tests = native.glob(["**/test_*.py"], exclude = tensorflow)
    native.py_library(
        name = "support",
        testonly = True,
        srcs = native.glob(["**/*.py"], exclude = ["**/test_*.py"]),
        deps = deps + [
            "//tests:support",
            "//tests/testing",
        ],
    )
    if tests:
        args = ["-k", "'%s'" % " and ".join(["not " + w for w in without])]
        _pytest(name, tests, args if without else [], **kwargs)
    if tensorflow:
        _pytest(
            name + "_tensorflow",
            native.glob(tensorflow),
            [],
            tags = ["manual"],
            **kwargs
        )

def _pytest(name, files, args, **kwargs):
    native.py_test(
        name = name,
        srcs = files + ["//tests/testing:run_pytest.py"],
        main = "//tests/testing:run_pytest.py",
        args = [native.package_name()] + args,
        deps = [":support"],
        **kwargs
    )
