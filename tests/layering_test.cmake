cmake_minimum_required(VERSION 3.25)
# Fails on JSON that is written past base/json_text.h, and on an include that points up or sideways:
#   launch -> serve | lab -> start -> requests -> coordinator | draft_worker | target_worker -> cluster, transformer
#   -> comm -> base; heads between the workers and transformer
set(base_may "base")
set(comm_may "comm;base")
set(transformer_may "transformer;comm;base")
set(cluster_may "cluster;comm;base")
set(coordinator_may "coordinator;cluster;transformer;comm;base")
set(heads_may "heads;transformer;comm;base")
set(draft_worker_may "draft_worker;heads;cluster;transformer;comm;base")
set(target_worker_may "target_worker;heads;cluster;transformer;comm;base")
set(requests_may "requests;coordinator;transformer;comm;base")
set(start_may "start;requests;coordinator;draft_worker;target_worker;heads;cluster;transformer;comm;base")
set(serve_may "serve;${start_may}")
set(lab_may "lab;${start_may}")
set(launch_may "launch;serve;lab;${start_may}")

set(folders base comm cluster transformer heads coordinator draft_worker target_worker requests start serve lab launch)
set(violations "")
foreach(folder IN LISTS folders)
  file(GLOB_RECURSE sources ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.cu ${ROOT}/${folder}/*.cuh)
  foreach(source IN LISTS sources)
    # nlohmann's own throws at a name that is not UTF-8.
    file(STRINGS ${source} dumps REGEX "(\\.|->)dump\\(")
    if(dumps AND NOT source MATCHES "/base/json_text.h$")
      list(APPEND violations "${source}: ${dumps} (write JSON with json_text() of base/json_text.h)")
    endif()
    file(STRINGS ${source} includes REGEX "^#include \"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([^/\"]*)/.*" "\\1" included "${line}")
      if(included IN_LIST folders AND NOT included IN_LIST ${folder}_may)
        list(APPEND violations "${source}: ${line}")
      endif()
      # A language model knows nothing of requests, drafts or epochs: of comm it may see the collectives only, and
      # their device side where a kernel is fused with them.
      if(folder STREQUAL "transformer" AND included STREQUAL "comm"
         AND NOT line MATCHES "comm/(collectives|device_group|cuda/peer_exchange|cuda/reduce).h")
        list(APPEND violations "${source}: ${line} (transformer may include only the collectives of comm)")
      endif()
      # The coordinator links the tokenizer, not the model. Of the model's cache it knows the size of a block.
      if(folder STREQUAL "coordinator" AND included STREQUAL "transformer"
         AND NOT line MATCHES "transformer/(tokenizer/tokenizer|chat_template/chat_template|grammar/grammar|kv/kv_shape).h")
        list(APPEND violations "${source}: ${line} (the coordinator may include only the tokenizer, grammar.h and kv_shape.h)")
      endif()
    endforeach()
  endforeach()
endforeach()
if(violations)
  list(JOIN violations "\n  " text)
  message(FATAL_ERROR "what breaks the layering:\n  ${text}")
endif()
