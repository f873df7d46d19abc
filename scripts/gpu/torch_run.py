def parts(context):
    return []
