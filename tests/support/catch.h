/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The part of Catch2 that the tests use, from version 2 (Debian 12) or 3 (Debian 13). */
#ifndef SUPPORT_CATCH_H
#define SUPPORT_CATCH_H

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_version_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#else
#include <catch2/catch.hpp>
#endif

#endif
