# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""The C library as Python sees it: handles, buffers and errors, nothing else."""

from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset, strncpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
cimport numpy as cnp

from . cimport libddstore as c

import _thread
import ast
import atexit
import logging
import operator
import os
import sys
import threading
import weakref

import numpy as np

cnp.import_array()

__version__ = c.ddstore_version().decode()

include "_core_errors.pxi"
include "_core_host.pxi"
include "_core_settings.pxi"
include "_core_nic_map.pxi"
include "_core_arrays.pxi"
include "_core_comm.pxi"
include "_core_mpi.pxi"
include "_core_handle.pxi"
include "_core_store.pxi"
