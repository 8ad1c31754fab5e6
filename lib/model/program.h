// PLACEHOLDER (the engine's author fills this in): the list of fused ops of one forward pass, as data.
#pragma once
namespace hetero::model { struct Program; }
