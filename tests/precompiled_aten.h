// Headers that most tests include.
#pragma once
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cmake/libtorch_precompiled.h"
